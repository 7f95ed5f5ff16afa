"""/v1/audio/speech: the sound of texts, in OpenAI's API."""

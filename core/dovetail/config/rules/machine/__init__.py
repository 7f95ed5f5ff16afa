"""Rules about the machine: its device, cores, memory and launcher."""

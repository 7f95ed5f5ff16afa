"""KV blocks of dovetail from engine to engine by NIXL."""

"""The Talker: text ids in, codec frames out, one device graph a step."""

"""Parts of the Talker's benchmark."""

"""Parts of the Code2Wav benchmark."""

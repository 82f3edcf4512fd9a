"""The command line: `ipu-keras`."""

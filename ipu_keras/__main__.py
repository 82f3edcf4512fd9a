"""`python -m ipu_keras` is the same program as `ipu-keras`."""

import sys

from ipu_keras.cli.main import main

if __name__ == "__main__":
    sys.exit(main())

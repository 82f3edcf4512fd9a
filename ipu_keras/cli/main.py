"""The program `ipu-keras`: chooses the subcommand, and turns the project's exceptions into messages and exit codes.

Nothing heavy is imported before a subcommand needs it: `--help` must answer at once.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from ipu_keras import __version__
from ipu_keras.cli.usage import UsageError
from ipu_keras.errors import IPUError

__all__ = ["main"]

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
"""Exit codes; argparse itself uses 2."""

_NEEDED = {"tensorflow", "keras", "sklearn"}

FIT_TEXT = """\
Compiles one step of a model and prints its memory and its estimated cycles. Nothing is trained, and the model's
variables take no memory, so models that are too large for this machine can be asked about, too.

MODEL.py defines a function that takes nothing and returns the compiled Keras model and a batch: x or (x, y), as arrays
or as tf.TensorSpec of the shapes. The file is run as a module, in the scope of an IPUStrategy:

    import keras, tensorflow as tf

    def model():
        net = keras.Sequential([keras.layers.Dense(4096, "relu"), keras.layers.Dense(10)])
        net.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return net, (tf.TensorSpec((64, 784)), tf.TensorSpec((64,), tf.int32))

With --kind predict the function may return the model alone if its inputs are known.
Exit codes: 0 it fits, 1 it does not fit or failed, 2 wrong usage.
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ipu-keras",
        description="An emulated Graphcore IPU for Keras.",
        epilog="Exit codes: 0 done, 1 failed with a message, 2 wrong usage, 130 interrupted.",
    )
    parser.add_argument("--version", action="version", version=f"ipu-keras {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")

    demo = commands.add_parser(
        "demo",
        help="train a small ConvNet on handwritten digits on an emulated GC200",
        description="Trains a small ConvNet on scikit-learn's 1,797 handwritten digits on one emulated IPU, and "
        "reports accuracy, memory, estimated cycles, and the emulation's own speed against XLA on the CPU.",
    )
    demo.add_argument("--json", action="store_true", help="print one JSON object on stdout; progress goes to stderr")
    demo.add_argument(
        "--quick", action="store_true", help="one epoch and few timed steps: shows that it works, no more"
    )
    demo.add_argument(
        "--target", default="gc200", help="name of the chip (see `ipu-keras targets`; default: %(default)s)"
    )

    fit = commands.add_parser(
        "fit",
        help="say whether a model fits the chip, and how fast its step would be, without running it",
        description=FIT_TEXT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    fit.add_argument("model", metavar="MODEL.py[:function]", help="file and function (default: model) that make it")
    fit.add_argument("--target", default="gc200", help="name of the chip (default: %(default)s)")
    fit.add_argument("--ipus", type=int, default=1, metavar="N", help="number of chips (default: %(default)s)")
    fit.add_argument("--kind", choices=("train", "test", "predict"), default="train", help="default: %(default)s")
    fit.add_argument("--batch-size", type=int, metavar="B", help="instead of the batch's own first dimension")
    fit.add_argument("--json", action="store_true", help="print one JSON object on stdout; all else goes to stderr")

    targets = commands.add_parser("targets", help="list the chips that can be emulated")
    targets.add_argument("--json", action="store_true", help="print a JSON list on stdout")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the program.

    Args:
        argv: arguments without the program's name; None for the process's.

    Returns:
        The exit code.
    """
    parser = _parser()
    options = parser.parse_args(argv)
    if options.command is None:
        parser.print_help()
        return USAGE
    try:
        if options.command == "demo":
            from ipu_keras.cli.demo import demo

            demo(target=options.target, quick=options.quick, as_json=options.json)
        elif options.command == "fit":
            from ipu_keras.cli.fit import fit

            fits = fit(
                options.model,
                target=options.target,
                ipus=options.ipus,
                kind=options.kind,
                batch_size=options.batch_size,
                as_json=options.json,
            )
            return OK if fits else FAILED
        else:
            from ipu_keras.cli.targets import targets

            targets(as_json=options.json)
    except UsageError as error:
        print(f"ipu-keras {options.command}: {error}", file=sys.stderr)
        return USAGE
    except IPUError as error:
        print(f"ipu-keras: {error}", file=sys.stderr)
        return FAILED
    except ModuleNotFoundError as error:
        if error.name not in _NEEDED:
            raise
        print(f"ipu-keras: {options.command} needs {error.name}, which is not installed here", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("ipu-keras: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()
        return FAILED
    return OK


if __name__ == "__main__":
    sys.exit(main())

"""The codelets: what a vertex computes, one family a file."""

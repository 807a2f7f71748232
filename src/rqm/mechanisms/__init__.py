"""One file a mechanism: each a small frozen dataclass that builds its law."""

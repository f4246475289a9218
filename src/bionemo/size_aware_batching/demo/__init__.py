"""The workflow on a bundled proteome and a small protein language model."""

from __future__ import annotations

from bionemo.size_aware_batching.demo._demo import Demo, as_document, run_demo
from bionemo.size_aware_batching.demo._fasta import bundled_proteome, read_fasta

__all__ = ["Demo", "as_document", "bundled_proteome", "read_fasta", "run_demo"]

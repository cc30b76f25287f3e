"""How the embedded bilingual stories are made: words, their grammar, and plots that are plain text."""

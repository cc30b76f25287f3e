"""How the embedded encyclopaedia is made: kinds of things as plain text, one fixed world, and the shapes of its articles."""

"""Documents in, labelled and tokenised rows out."""

"""From results to a picture and a page: every plot and number here is drawn from results.json alone."""

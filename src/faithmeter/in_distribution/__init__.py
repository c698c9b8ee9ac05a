"""Is masked text in-distribution for a model? MaSF in two forms, and the verdict on a whole split."""

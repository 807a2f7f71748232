"""Systems that the paper cites and that are not on the path of a secure sum: kept to compare with."""

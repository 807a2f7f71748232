"""Reference outputs of the library, recorded before the redesign, and the tests that compare with them."""

"""`make bench-page`: how long each page takes while agents commit, with a thousand agents and a million attempts."""

"""Pages, their generators and the scripts behind their figures."""

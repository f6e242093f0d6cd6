"""What commands, jobs and reports share: this machine's cores, files that they make, words."""

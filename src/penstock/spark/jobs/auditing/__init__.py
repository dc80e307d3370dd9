"""What an audit is made of: one file for each thing that is compared."""

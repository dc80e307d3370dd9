"""Amazon SQS's interface: two protocols over one table of actions."""

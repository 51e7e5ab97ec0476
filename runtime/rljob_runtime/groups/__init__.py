"""What is known of every group: may it start, is it trained, how did it end. Pure."""

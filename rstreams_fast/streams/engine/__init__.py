"""What carries a subscription, and knows no operator."""

"""Methods on the same splits: trained, tested, measured; nothing is drawn here."""

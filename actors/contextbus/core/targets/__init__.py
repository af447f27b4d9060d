"""From a request to one provider's payload.  Pure."""

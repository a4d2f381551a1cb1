"""The load tester: knows the service only by HTTP."""

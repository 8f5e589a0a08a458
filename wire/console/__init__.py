"""The output of both command lines, `fleet` and `fleet-agent`: texts, tables and help pages."""

"""How both command lines, `fleet` and `fleet-agent`, look: texts, tables and help pages."""

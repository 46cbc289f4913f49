"""The study in force: its schema, checks and composition; audits and exports."""

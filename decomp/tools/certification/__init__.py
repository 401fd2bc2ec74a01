"""The truth about rules, measured: points that cover the domain of a rule, the rule and the op itself run on them in
every way that users run it (as written, lowered to a target, differentiated, under symbolic sizes), what comes out
held against exact results, and certificates that keep the figures. The way in is `certify`; nouns: `certificate`,
`reference`."""

package nft

// RuleText returns one rule of the table in nft's syntax, without its comment.
func (t *Table) RuleText(r *Rule) string { return ruleWords(t, r) }

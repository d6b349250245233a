package inspect

import "regexp"

// secrets are what must not leave a node, wherever it stands: keys, tokens, passwords,
// certificates' private parts.
var secrets = []*regexp.Regexp{
	regexp.MustCompile(`(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|$)`),
	regexp.MustCompile(`eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*`), // JSON web tokens
	regexp.MustCompile(`(?i)\b(bearer|basic) +[A-Za-z0-9._~+/=-]{8,}`),
	regexp.MustCompile(`(?i)"?\b(token|password|passwd|secret|psk|client-key-data|client-certificate-data|api[-_]?key)"? *[:=] *("[^"\n]*"|[^\s,"]+)`),
	regexp.MustCompile(`://[^/\s:@]+:[^/\s@]+@`), // user:password@host
}

const secretIs = "<left out>"

// withoutSecrets returns a text without what looks like a secret. What tells of one too many costs
// a word; what tells of one too few costs a cluster.
func withoutSecrets(text []byte) []byte {
	for _, s := range secrets {
		text = s.ReplaceAll(text, []byte(secretIs))
	}
	return text
}

package inspect

import "regexp"

// secrets match what must not leave a node in any file: keys, tokens, passwords, certificates'
// private parts.
var secrets = []*regexp.Regexp{
	regexp.MustCompile(`(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|$)`),
	regexp.MustCompile(`eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*`), // JSON web tokens
	regexp.MustCompile(`(?i)\b(bearer|basic) +[A-Za-z0-9._~+/=-]{8,}`),
	regexp.MustCompile(`(?i)"?\b(token|password|passwd|secret|psk|client-key-data|client-certificate-data|api[-_]?key)"? *[:=] *("[^"\n]*"|[^\s,"]+)`),
	regexp.MustCompile(`://[^/\s:@]+:[^/\s@]+@`), // user:password@host
}

const secretReplacement = "<left out>"

// withoutSecrets removes what looks like a secret. A false match loses a word; a missed one can
// expose a cluster.
func withoutSecrets(text []byte) []byte {
	for _, s := range secrets {
		text = s.ReplaceAll(text, []byte(secretReplacement))
	}
	return text
}

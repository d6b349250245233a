package inspect

// WithoutSecrets exports withoutSecrets.
func WithoutSecrets(text []byte) []byte { return withoutSecrets(text) }

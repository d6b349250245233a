package inspect

// WithoutSecrets is withoutSecrets.
func WithoutSecrets(text []byte) []byte { return withoutSecrets(text) }

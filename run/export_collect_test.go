package run

// WithoutSecrets is withoutSecrets.
func WithoutSecrets(text []byte) []byte { return withoutSecrets(text) }

package picture

// TextWidth is textWidth for tests.
func TextWidth(text string, size int) int { return textWidth(text, size) }

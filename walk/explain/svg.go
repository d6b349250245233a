package explain

// SVG draws the packet's way.
func (e *Explanation) SVG() string { return "" }

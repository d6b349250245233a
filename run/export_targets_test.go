package run

// CheckOVS is checkOVS.
func CheckOVS(version string) error { return checkOVS(version) }

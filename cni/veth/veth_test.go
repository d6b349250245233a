package veth

import "testing"

func TestHostName(t *testing.T) {
	seen := map[string]bool{}
	for range 100 {
		name := NewHostName()
		if len(name) != 15 || !IsHostName(name) || seen[name] {
			t.Fatalf("name %q", name)
		}
		seen[name] = true
	}
	for _, other := range []string{"eth0", "hairpin", "hairpin0", "hairpinxxxxxxxx", "podman0", "veth1a2b3c4d"} {
		if IsHostName(other) {
			t.Errorf("%q counts as a name of NewHostName", other)
		}
	}
}

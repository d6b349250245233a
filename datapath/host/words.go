package host

import "strings"

// String returns the route in the format of `ip route show`, without the verb: "10.96.0.0/16 via
// 169.254.169.4 dev br-ex …".
func (r Route) String() string { return withoutVerb(routeText("show", r)) }

// String returns the neighbour in the format of `ip neigh show`, without the verb.
func (n Neighbor) String() string { return withoutVerb(neighborText("show", n)) }

func withoutVerb(command string) string {
	_, s, _ := strings.Cut(command, " show ")
	return s
}

package host

import "strings"

// String returns the route as `ip route show` does, without the verb: "10.96.0.0/16 via
// 169.254.169.4 dev br-ex …".
func (r Route) String() string { return withoutVerb(routeText("show", r)) }

// String returns the neighbour as `ip neigh show` does, without the verb.
func (n Neighbor) String() string { return withoutVerb(neighborText("show", n)) }

func withoutVerb(command string) string {
	_, s, _ := strings.Cut(command, " show ")
	return s
}

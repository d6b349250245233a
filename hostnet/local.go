package hostnet

import (
	"maps"
	"reflect"
	"slices"

	"hairpin/cluster"
)

// Local is what this node knows earlier than the API: its own gateway, addresses and pods.
type Local struct {
	node    string
	withAPI bool // every pod has an object in the Snapshots, sooner or later
	found   Found
	Base    *cluster.Node // the Node of the Snapshot from which Own was made
	Own     *cluster.Node
	merged  map[*cluster.Pod]*cluster.Pod // own pods, and the same with what their objects add
	objects map[podKey]*cluster.Pod       // the newest objects of own pods
	// The last list of all pods, and the lists it was made from.
	pods, apiPods, startingPods, ownPods []*cluster.Pod
}

// podKey names a pod. A later pod of the same name has another UID.
type podKey struct {
	owner cluster.Owner
	uid   string
}

// NewLocal returns a Local without facts. withAPI means that every pod has an object in the
// Snapshots, sooner or later.
func NewLocal(node string, withAPI bool) Local { return Local{node: node, withAPI: withAPI} }

// Apply returns the Snapshot with local facts in place of the API's. While the facts stay the same,
// the pointer to the own Node does, too.
func (l *Local) Apply(s *cluster.Snapshot, found Found, pods []*cluster.Pod) *cluster.Snapshot {
	base := s.Node(l.node)
	if base == nil {
		return s
	}
	if base != l.Base || !reflect.DeepEqual(found, l.found) {
		l.Base, l.found = base, found
		own := *base
		own.Gateway = found.Gateway
		own.HostAddresses = found.addresses
		own.Links, own.Rules, own.Tables = found.otherLinks, found.rules, found.tables
		if !cluster.ModeNamed(own.Gateway.Mode).Uplink && len(own.Addresses) > 0 {
			d := found.deviceWith[own.Addresses[0]]
			own.Gateway.Device, own.Gateway.DeviceMAC = d.name, d.mac
		}
		l.Own = &own
	}
	out := *s
	out.Nodes = slices.Clone(s.Nodes)
	out.Nodes[slices.Index(out.Nodes, base)] = l.Own
	if !cluster.SameList(l.apiPods, s.Pods) || !cluster.SameList(l.startingPods, s.Starting) ||
		!slices.Equal(l.ownPods, pods) {
		l.pods = l.allPods(s, pods)
		l.apiPods, l.startingPods, l.ownPods = s.Pods, s.Starting, slices.Clone(pods)
	}
	out.Pods = l.pods
	return &out
}

// allPods inserts own pods among those of other nodes, which may be all pods of the cluster and are
// sorted already.
func (l *Local) allPods(s *cluster.Snapshot, pods []*cluster.Pod) []*cluster.Pod {
	others := slices.DeleteFunc(slices.Clone(s.Pods), func(p *cluster.Pod) bool { return p.Node == l.node })
	own := l.addObjects(s, pods)
	slices.SortFunc(own, (*cluster.Pod).Compare)
	list := make([]*cluster.Pod, 0, len(others)+len(own))
	for _, p := range own {
		n, _ := slices.BinarySearchFunc(others, p.Owner, comparePod)
		list = append(append(list, others[:n]...), p)
		others = others[n:]
	}
	return append(list, others...)
}

// objectOf returns the API's object of an own pod, or nil. An object of another pod with the same
// name does not count.
func (l *Local) objectOf(s *cluster.Snapshot, p *cluster.Pod) *cluster.Pod {
	for _, all := range [][]*cluster.Pod{s.Starting, s.Pods} {
		if i, found := slices.BinarySearchFunc(all, p.Owner, comparePod); found && all[i].Node == l.node {
			if o := all[i]; o.UID == p.UID || o.UID == "" || p.UID == "" {
				return o
			}
		}
	}
	return nil
}

func comparePod(p *cluster.Pod, o cluster.Owner) int { return p.Owner.Compare(o) }

// addObjects adds to own pods the labels, named ports and extra addresses of their objects. While
// these stay the same, the pointer does, too. A pod keeps its labels and ports after its object was
// deleted: policies apply to it until its interface is removed. A pod is Unread until its object is
// known.
func (l *Local) addObjects(s *cluster.Snapshot, pods []*cluster.Pod) []*cluster.Pod {
	list, next := make([]*cluster.Pod, 0, len(pods)), make(map[*cluster.Pod]*cluster.Pod, len(pods))
	objects := make(map[podKey]*cluster.Pod, len(pods))
	for _, p := range pods {
		c, key := *p, podKey{p.Owner, p.UID}
		object := l.objectOf(s, p)
		if object != nil {
			c.Extra = object.Extra
		} else {
			object = l.objects[key] // deleted
		}
		if object != nil {
			objects[key] = object
			c.Labels, c.Ports = object.Labels, object.Ports
		}
		c.Unread = l.withAPI && object == nil
		pod := l.merged[p]
		switch {
		case len(c.Labels)+len(c.Ports)+len(c.Extra) == 0 && !c.Unread:
			pod = p
		case pod == nil || pod.Unread != c.Unread || !maps.Equal(pod.Labels, c.Labels) ||
			!slices.Equal(pod.Ports, c.Ports) || !slices.Equal(pod.Extra, c.Extra):
			pod = &c
		}
		next[p] = pod
		list = append(list, pod)
	}
	l.merged, l.objects = next, objects
	return list
}

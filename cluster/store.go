package cluster

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// Store collects Kubernetes objects and gives Snapshots of them. It is not safe for concurrent use: one
// goroutine owns it, and hands its Snapshots to the others.
//
// The cost of a Snapshot follows what changed since the last one, not the size of the cluster.
type Store struct {
	config   Config
	nodes    sorted[Node]
	pods     sorted[Pod]
	services map[Owner]*serviceFacts
	// frontends holds those of all services; stale are the services whose frontends must be computed again.
	frontends []*Frontend
	stale     map[Owner]bool
	problems  map[Owner][]Problem // by the object that was parsed
	orphans   map[Owner]Owner     // slice → the Service that it names and that is not there
}

// serviceFacts is one Service with its slices, by the slice's name.
type serviceFacts struct {
	service   *corev1.Service // nil: only slices came so far
	slices    map[string]*discoveryv1.EndpointSlice
	frontends []*Frontend
}

// NewStore gives an empty store.
func NewStore(config Config) *Store {
	return &Store{
		config:   config,
		nodes:    newSorted(func(a, b *Node) int { return cmp.Compare(a.Name, b.Name) }),
		pods:     newSorted(func(a, b *Pod) int { return a.Owner.Compare(b.Owner) }),
		services: map[Owner]*serviceFacts{},
		stale:    map[Owner]bool{},
		problems: map[Owner][]Problem{},
		orphans:  map[Owner]Owner{},
	}
}

// Set takes a new or changed object: *corev1.Node, *corev1.Pod, *corev1.Service or *discoveryv1.EndpointSlice.
// Others are ignored. The object must not be changed afterwards.
func (s *Store) Set(obj any) {
	switch o := obj.(type) {
	case *corev1.Node:
		n, problems := parseNode(o)
		s.nodes.set(ownerOf("Node", &o.ObjectMeta), n)
		s.note(ownerOf("Node", &o.ObjectMeta), problems)
	case *corev1.Pod:
		owner := ownerOf("Pod", &o.ObjectMeta)
		p, problems := parsePod(o)
		if p == nil {
			s.pods.remove(owner)
		} else {
			s.pods.set(owner, p)
		}
		s.note(owner, problems)
	case *corev1.Service:
		owner := ownerOf("Service", &o.ObjectMeta)
		s.facts(owner).service = o
		s.stale[owner] = true
	case *discoveryv1.EndpointSlice:
		s.setSlice(o)
	}
}

func (s *Store) setSlice(o *discoveryv1.EndpointSlice) {
	owner := ownerOf("EndpointSlice", &o.ObjectMeta)
	service := Owner{"Service", o.Namespace, o.Labels[discoveryv1.LabelServiceName]}
	s.dropSlice(owner, service) // its label may name another Service now
	if service.Name == "" {
		s.note(owner, []Problem{{owner, "metadata.labels[" + discoveryv1.LabelServiceName + "]", "names no Service, so the slice serves none"}})
		return
	}
	s.note(owner, nil)
	s.facts(service).slices[o.Name] = o
	s.stale[service] = true
}

// dropSlice takes a slice away from every Service but the one named.
func (s *Store) dropSlice(slice, keep Owner) {
	delete(s.orphans, slice)
	for owner, f := range s.services {
		if owner.Namespace != slice.Namespace || owner == keep {
			continue
		}
		if _, ok := f.slices[slice.Name]; ok {
			delete(f.slices, slice.Name)
			s.stale[owner] = true
		}
	}
}

// Delete forgets an object of a type that Set takes.
func (s *Store) Delete(obj any) {
	switch o := obj.(type) {
	case *corev1.Node:
		s.nodes.remove(ownerOf("Node", &o.ObjectMeta))
		s.note(ownerOf("Node", &o.ObjectMeta), nil)
	case *corev1.Pod:
		s.pods.remove(ownerOf("Pod", &o.ObjectMeta))
		s.note(ownerOf("Pod", &o.ObjectMeta), nil)
	case *corev1.Service:
		owner := ownerOf("Service", &o.ObjectMeta)
		s.facts(owner).service = nil
		s.stale[owner] = true
	case *discoveryv1.EndpointSlice:
		owner := ownerOf("EndpointSlice", &o.ObjectMeta)
		s.dropSlice(owner, Owner{})
		s.note(owner, nil)
	}
}

func (s *Store) facts(owner Owner) *serviceFacts {
	f := s.services[owner]
	if f == nil {
		f = &serviceFacts{slices: map[string]*discoveryv1.EndpointSlice{}}
		s.services[owner] = f
	}
	return f
}

// note replaces what is known to be wrong with an object.
func (s *Store) note(owner Owner, problems []Problem) {
	if len(problems) == 0 {
		delete(s.problems, owner)
		return
	}
	s.problems[owner] = problems
}

// Snapshot gives the facts as they are now. It shares nothing that a later Set would change.
func (s *Store) Snapshot() *Snapshot {
	if len(s.stale) > 0 {
		s.refresh()
	}
	return &Snapshot{
		Config:    s.config,
		Nodes:     s.nodes.list(),
		Frontends: s.frontends,
		Pods:      s.pods.list(),
		Problems:  s.problemList(),
	}
}

// refresh computes the frontends of stale services again and merges them into a new list.
func (s *Store) refresh() {
	var fresh []*Frontend
	for owner := range s.stale {
		f := s.services[owner]
		s.markOrphans(owner, f)
		if f.service == nil {
			f.frontends = nil
			s.note(owner, nil)
			if len(f.slices) == 0 {
				delete(s.services, owner)
			}
			continue
		}
		var problems []Problem
		f.frontends, problems = parseService(f.service, f.slices, f.frontends)
		s.note(owner, problems)
		fresh = append(fresh, f.frontends...)
	}
	slices.SortFunc(fresh, (*Frontend).Compare)
	s.frontends = mergeSorted(s.frontends, fresh, (*Frontend).Compare, func(f *Frontend) bool { return s.stale[f.Owner] })
	clear(s.stale)
}

func (s *Store) markOrphans(service Owner, f *serviceFacts) {
	for name := range f.slices {
		slice := Owner{"EndpointSlice", service.Namespace, name}
		if f.service == nil {
			s.orphans[slice] = service
		} else {
			delete(s.orphans, slice)
		}
	}
}

func (s *Store) problemList() []Problem {
	var list []Problem
	for _, p := range s.problems {
		list = append(list, p...)
	}
	for slice, service := range s.orphans {
		list = append(list, Problem{slice, "metadata.labels[" + discoveryv1.LabelServiceName + "]", fmt.Sprintf("there is no %s", service)})
	}
	slices.SortFunc(list, func(a, b Problem) int {
		return cmp.Or(a.Owner.Compare(b.Owner), cmp.Compare(a.Field, b.Field), cmp.Compare(a.Message, b.Message))
	})
	return list
}

package netpolicy

import (
	"slices"

	"hairpin/cluster"
)

// compile compiles one own pod again. It releases the former Profiles after that, so that Profiles
// and sets that stay keep their IDs.
func (u *update) compile(name cluster.Owner) {
	was, now := u.selected[name], u.compileSubject(name)
	switch {
	case was == nil && now == nil:
		return
	case now == nil:
		delete(u.selected, name)
	default:
		u.selected[name] = now
	}
	if was != nil {
		for _, p := range was.profiles {
			u.releaseProfile(p)
		}
		for key := range was.named {
			u.named[key].users--
		}
	}
	if was != nil && now != nil && was.Pod == now.Pod {
		return
	}
	if was != nil {
		u.delta.Pods.Removed = append(u.delta.Pods.Removed, &was.Pod)
	}
	if now != nil {
		u.delta.Pods.Added = append(u.delta.Pods.Added, &now.Pod)
	}
}

// compileSubject returns nil for a pod that is gone, or to which no Policy applies.
func (u *update) compileSubject(name cluster.Owner) *subject {
	i, found := slices.BinarySearchFunc(u.own, name, func(p *cluster.Pod, o cluster.Owner) int {
		return p.Owner.Compare(o)
	})
	if !found {
		return nil
	}
	c := compiler{index: u.Index, pod: u.own[i], join: u.join, named: map[string]bool{}}
	policies := u.byNamespace[name.Namespace]
	egress, egressApplies, egressIsolated := c.rules(Egress, policies, u.clusterwide)
	ingress, ingressApplies, ingressIsolated := c.rules(Ingress, policies, u.clusterwide)
	if c.pod.Unread && len(policies)+len(u.clusterwide) > 0 { // any of them may select it
		egress, ingress = nil, nil
		egressApplies, ingressApplies, egressIsolated, ingressIsolated = true, true, true, true
	}
	if !egressApplies && !ingressApplies {
		return nil
	}
	s := &subject{Pod: Pod{Pod: c.pod, Egress: Open, Ingress: Open, Joined: Open}, named: c.named}
	use := func(d Direction, isolated bool, list []rule) uint32 {
		p := u.useProfile(d, isolated, list)
		s.profiles = append(s.profiles, p)
		return p.ID
	}
	if egressApplies {
		s.Egress = use(Egress, egressIsolated, egress)
	}
	if ingressApplies {
		s.Joined = use(Ingress, ingressIsolated, c.rulesFromJoin(ingress))
		s.Ingress = use(Ingress, ingressIsolated, ingress)
	}
	for key := range s.named {
		u.named[key].users++
	}
	return s
}

// useProfile returns the Profile of rules, and counts one more user.
func (u *update) useProfile(d Direction, isolated bool, list []rule) *Profile {
	list, text := mergeRules(d, isolated, list)
	p := u.profiles[text]
	if p == nil {
		p = &Profile{Direction: d, ID: u.profileIDs.take(text), Isolated: isolated, text: text}
		for _, r := range list {
			x := Rule{Place: r.place, Action: r.action, Family: r.family, Ports: r.ports, Policy: r.policy}
			if r.peers != nil {
				s := u.useSet(d, r)
				x.Set, p.sets = s.id, append(p.sets, s)
			}
			p.Rules = append(p.Rules, x)
		}
		u.profiles[text] = p
		u.delta.Profiles.Added = append(u.delta.Profiles.Added, p)
	}
	p.users++
	return p
}

// useSet returns the set of a rule, and counts one more user.
func (u *update) useSet(d Direction, r rule) *set {
	s := u.sets[d][r.key]
	if s == nil {
		s = &set{peers: *r.peers, place: r.place, key: r.key, direction: d,
			id: u.setIDs.take(string(rune('0'+d)) + r.key)}
		u.sets[d][r.key] = s
		u.fill(s, 1)
	}
	s.users++
	return s
}

// releaseProfile counts one user of a Profile less, and removes it with the last one.
func (u *update) releaseProfile(p *Profile) {
	if p.users--; p.users > 0 {
		return
	}
	delete(u.profiles, p.text)
	u.profileIDs.release(p.ID)
	if i := slices.Index(u.delta.Profiles.Added, p); i >= 0 { // made in this update
		u.delta.Profiles.Added = slices.Delete(u.delta.Profiles.Added, i, i+1)
	} else {
		u.delta.Profiles.Removed = append(u.delta.Profiles.Removed, p)
	}
	for _, s := range p.sets {
		if s.users--; s.users == 0 {
			u.fill(s, -1)
			delete(u.sets[s.direction], s.key)
			u.setIDs.release(s.id)
		}
	}
}

package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"golang.org/x/sys/unix"
)

// baseDir holds a directory per lab.
const baseDir = "/run/hairpin-lab"

// Defaults of the underlay, as in the documentation.
const (
	underlayName   = "underlay"
	UnderlayBridge = "ul0" // the bridge of all machines, and their gateway
)

// record is the state of a lab that a later process needs. It is stored in lab.json.
type record struct {
	Name  string
	Owner process // the process that started it
	Image string  `json:",omitempty"` // Config.Image
	Hosts []hostRecord
	// Disks are directories of nodes (NodeConfig.Disk), also of stopped ones; they are removed with
	// the lab.
	Disks      []string  `json:",omitempty"`
	Forwarders []process `json:",omitempty"`
}

// hostRecord is one Host or Node.
type hostRecord struct {
	Name      string
	Holder    process
	Addresses []netip.Prefix `json:",omitempty"` // on the underlay
	Node      *nodeRecord    `json:",omitempty"` // nil for a plain Host
}

// nodeRecord is the state that a Node has in addition to that of a Host.
type nodeRecord struct {
	Datapath string              // "netdev" or "system"
	Disk     string              `json:",omitempty"` // NodeConfig.Disk
	Daemons  map[string][]string // of StartDaemon, by name
	Pods     []podRecord
}

// process identifies a process, also after its PID was reused.
type process struct {
	PID   int
	Start string // see startTime
}

func thisProcess() process { return process{os.Getpid(), startTime(os.Getpid())} }

func (p process) alive() bool { return p.PID > 0 && p.Start != "" && startTime(p.PID) == p.Start }

// kill ends the process with SIGKILL and waits until it is gone. For a holder this includes
// everything in its process namespace.
func (p process) kill(patience time.Duration) error {
	if !p.alive() {
		return nil
	}
	if err := unix.Kill(p.PID, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill process %d: %w", p.PID, err)
	}
	for end := time.Now().Add(patience); p.alive(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			return fmt.Errorf("process %d is still there %s after SIGKILL", p.PID, patience)
		}
	}
	return nil
}

var validName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?$`)

func labDir(name string) string { return filepath.Join(baseDir, name) }

func (r *record) save() error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	path := filepath.Join(labDir(r.Name), "lab.json")
	if err := os.WriteFile(path+".new", append(data, '\n'), 0o644); err != nil {
		return fmt.Errorf("save lab state: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("save lab state: %w", err)
	}
	return nil
}

func load(name string) (*record, error) {
	data, err := os.ReadFile(filepath.Join(labDir(name), "lab.json"))
	if err != nil {
		return nil, fmt.Errorf("find lab %q: %w", name, err)
	}
	r := &record{}
	if err := json.Unmarshal(data, r); err != nil {
		return nil, fmt.Errorf("read state of lab %q: %w", name, err)
	}
	return r, nil
}

// Names returns the names of the labs on this machine, running or left behind.
func Names() ([]string, error) {
	entries, err := os.ReadDir(baseDir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list labs: %w", err)
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// Remove ends all processes of a lab and deletes its directory, no matter which process started it
// and how that process ended. It is no error if the lab does not exist.
func Remove(name string) error {
	if !validName.MatchString(name) {
		return fmt.Errorf("remove lab: %q is not a lab's name", name)
	}
	r, err := load(name)
	if errors.Is(err, os.ErrNotExist) {
		r, err = &record{Name: name}, nil
	}
	if err != nil {
		return err
	}
	if err := r.removeAll(); err != nil {
		return fmt.Errorf("remove lab %q: %w", name, err)
	}
	return nil
}

func (r *record) removeAll() error {
	var errs []error
	api := filepath.Join(labDir(r.Name), apiDirName)
	if s, err := OpenAPIServer(api); err == nil {
		errs = append(errs, s.Stop())
	}
	for _, f := range r.Forwarders {
		errs = append(errs, f.kill(5*time.Second))
	}
	for i := len(r.Hosts) - 1; i >= 0; i-- { // the underlay was started first and ends last
		h := r.Hosts[i]
		errs = append(errs, h.Holder.kill(10*time.Second))
		if h.Node != nil && h.Node.Disk != "" {
			errs = append(errs, removeCgroups(cgroupOf(r.Name, h.Name)))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err // keep the directory: it records what is left
	}
	for _, d := range r.Disks {
		errs = append(errs, os.RemoveAll(d))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return os.RemoveAll(labDir(r.Name))
}

// RemoveStale removes every lab with Config.DieWithCaller whose starting process is gone, and
// returns their names. Other labs stay.
func RemoveStale() ([]string, error) {
	names, err := Names()
	if err != nil {
		return nil, err
	}
	var removed []string
	var errs []error
	for _, name := range names {
		r, err := load(name)
		if err != nil || r.Owner.PID == 0 || r.Owner.alive() {
			continue
		}
		if err := Remove(name); err != nil {
			errs = append(errs, err)
			continue
		}
		removed = append(removed, name)
	}
	return removed, errors.Join(errs...)
}

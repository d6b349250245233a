// Package run holds the processes: the node agent, the controller, and the commands that look at them. All
// goroutines are started and ended here.
package run

#!/bin/sh
ls /sys/class/net > interfaces

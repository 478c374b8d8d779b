#!/bin/sh
tr a-z A-Z < seed > shouted
